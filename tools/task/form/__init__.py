"""The forms in which tasks come: the class of the model, the files that belong to it, the values of its input
makers."""
