"""The forms in which tasks come: which class is the model, which files belong to it, what the input makers give."""
