import torch
import torch.nn as nn

BATCH = 48
IMAGE = 518
PATCH = 14
CHANNELS = 3
DIM = 1024
REGISTERS = 4


class Model(nn.Module):
    """
    ViT stem in float16: patch embedding by a strided convolution, position
    embeddings, class and register tokens, pre-LayerNorm.
    """

    def __init__(self, image, patch, channels, dim, registers):
        super().__init__()
        dt = torch.float16
        n = (image // patch) ** 2
        self.proj = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch, dtype=dt)
        self.cls_token = nn.Parameter((0.5 * torch.randn(1, 1, dim)).to(dt))
        self.reg_tokens = nn.Parameter((0.5 * torch.randn(1, registers, dim)).to(dt))
        self.pos_embed = nn.Parameter((0.3 * torch.randn(1, n + 1, dim)).to(dt))
        self.norm = nn.LayerNorm(dim, eps=1e-6, dtype=dt)
        nn.init.normal_(self.norm.weight, 1.0, 0.1)
        nn.init.normal_(self.norm.bias, 0.0, 0.1)

    def forward(self, x):
        b = x.shape[0]
        x = self.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(b, -1, -1), x), dim=1)
        x = x + self.pos_embed
        x = torch.cat((x[:, :1], self.reg_tokens.expand(b, -1, -1), x[:, 1:]), dim=1)
        return self.norm(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, IMAGE, IMAGE, dtype=torch.float16)]


def get_init_inputs():
    return [IMAGE, PATCH, CHANNELS, DIM, REGISTERS]
