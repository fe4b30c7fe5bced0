import torch
import torch.nn as nn


class Model(nn.Module):
    """RL objective: GAE by reverse-time recursion, advantage whitening, clipped policy and value losses, entropy bonus."""

    def __init__(self, gamma, lam, clip, vf, ent):
        super().__init__()
        self.gamma, self.lam, self.clip, self.vf, self.ent = gamma, lam, clip, vf, ent

    def forward(self, logits, actions, old_logp, values, old_values, rewards, done):
        # logits (T,N,A); values (T,N); old_values (T+1,N)
        live = 1.0 - done
        delta = rewards + self.gamma * live * old_values[1:] - old_values[:-1]
        adv = torch.empty_like(delta)
        run = torch.zeros_like(delta[0])
        for t in range(delta.shape[0] - 1, -1, -1):
            run = delta[t] + self.gamma * self.lam * live[t] * run
            adv[t] = run
        ret = adv + old_values[:-1]
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        logp_all = torch.log_softmax(logits, -1)
        logp = logp_all.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        ratio = torch.exp(logp - old_logp)
        pg = -torch.minimum(ratio * adv, ratio.clamp(1 - self.clip, 1 + self.clip) * adv).mean()
        vclip = old_values[:-1] + (values - old_values[:-1]).clamp(-self.clip, self.clip)
        vl = 0.5 * torch.maximum((values - ret) ** 2, (vclip - ret) ** 2).mean()
        entropy = -(logp_all.exp() * logp_all).sum(-1).mean()
        total = pg + self.vf * vl - self.ent * entropy
        return total, ret, entropy


def get_inputs():
    T, N, A = 64, 1024, 18
    return [torch.randn(T, N, A), torch.randint(0, A, (T, N)), -torch.rand(T, N) * 3 - 1.0,
            torch.randn(T, N), torch.randn(T + 1, N), torch.randn(T, N), (torch.rand(T, N) < 0.05).float()]


def get_init_inputs():
    return [0.99, 0.95, 0.2, 0.5, 0.01]
