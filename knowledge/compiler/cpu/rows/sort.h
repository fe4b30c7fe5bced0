// Items in the order of their segments: a counting sort. Each stretch of items counts its own, then what comes before
// each stretch in each segment is added up, then every item goes to its place, so that items of a segment stay in order.

// `keys` holds an int32 for each item, `counts` one for each stretch and segment. A key outside is in no segment.
template <class Key>
static void sort_items(int64_t items, int64_t segments, int stretches, Key key, int32_t* __restrict starts,
                       int32_t* __restrict order, int32_t* __restrict keys, int32_t* __restrict counts) {
  int64_t totals[1025];
#pragma omp parallel num_threads(team_of(stretches))
  {
#pragma omp for schedule(static)
    for (int stretch = 0; stretch < stretches; ++stretch) {
      int32_t* const own = counts + stretch * segments;
      std::memset(own, 0, segments * sizeof(int32_t));
      for (int64_t i = items * stretch / stretches; i < items * (stretch + 1) / stretches; ++i) {
        const int64_t wanted = key(i);
        const bool known = (uint64_t)wanted < (uint64_t)segments;
        keys[i] = known ? (int32_t)wanted : -1;
        if (known) ++own[wanted];
      }
    }
#pragma omp for schedule(static)
    for (int part = 0; part < stretches; ++part) {
      int64_t total = 0;
      for (int stretch = 0; stretch < stretches; ++stretch)
        for (int64_t s = segments * part / stretches; s < segments * (part + 1) / stretches; ++s)
          total += counts[stretch * segments + s];
      totals[part + 1] = total;
    }
#pragma omp single
    {
      totals[0] = 0;
      for (int part = 0; part < stretches; ++part) totals[part + 1] += totals[part];
      starts[segments] = (int32_t)totals[stretches];
    }
#pragma omp for schedule(static)
    for (int part = 0; part < stretches; ++part) {
      int32_t place = (int32_t)totals[part];
      for (int64_t s = segments * part / stretches; s < segments * (part + 1) / stretches; ++s) {
        starts[s] = place;
        for (int stretch = 0; stretch < stretches; ++stretch) {
          const int32_t count = counts[stretch * segments + s];
          counts[stretch * segments + s] = place;
          place += count;
        }
      }
    }
#pragma omp for schedule(static)
    for (int stretch = 0; stretch < stretches; ++stretch) {
      int32_t* const own = counts + stretch * segments;
      for (int64_t i = items * stretch / stretches; i < items * (stretch + 1) / stretches; ++i)
        if (keys[i] >= 0) order[own[keys[i]]++] = (int32_t)i;
    }
  }
}
