template <class T> struct Last {
    T value;
    DEVICE_MEMBER Last() : value(0) {}
    DEVICE_MEMBER void add(T x) { value = x; }
    template <int K> DEVICE_MEMBER void chunk(const T (&x)[K]) { value = x[K - 1]; }
    DEVICE_MEMBER T result() const { return value; }
};
