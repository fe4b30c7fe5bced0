        const int p2 = first + lane * 4;
#pragma unroll
        for (int c = 0; c < BN; c += CHUNK) {
            bulk::meet(1 + group, 128);  // what was there is stored
#pragma unroll
            for (int h = c / 8; h < (c + CHUNK) / 8; ++h)
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    float* const to = slab + (h * 8 - c + lane % 4 * 2 + side) * SLAB_PITCH + warp % 4 * 32 + lane / 4 * 4;
                    const Vec<float, 4> sums = {acc[0][h * 4 + side], acc[0][h * 4 + 2 + side], acc[1][h * 4 + side],
                                                acc[1][h * 4 + 2 + side]};
                    store_vec<4>(to, sums);
                }
            bulk::meet(1 + group, 128);
#pragma unroll 2
            for (int row = warp % 4; row < CHUNK; row += 4) {
                const int channel = first_n + c + row;
                const Vec<float, 4> sums = load_vec<4>(slab + row * SLAB_PITCH + lane * 4);
                if (@EXISTS@) {
@EPILOGUE@
                }
            }
        }
