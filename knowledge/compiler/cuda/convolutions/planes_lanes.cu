        const int p2 = first + warp % 4 * 32 + lane / 4 * 4;
#pragma unroll
        for (int h = 0; h < BN / 8; ++h)
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const int channel = first_n + h * 8 + lane % 4 * 2 + side;
                if (@EXISTS@) {
@EPILOGUE@
                }
            }
