// Taps of @NAME@ in the order in which its products meet them: how far behind the window's begin each reads along the axes,
// and how far that is in memory.
@MEMORY@ int @NAME@_taps[@TAPS@][3] = {
    @SHIFTS@};
@MEMORY@ @INSIDE@ @NAME@_reads[@TAPS@] = {@READS@};
