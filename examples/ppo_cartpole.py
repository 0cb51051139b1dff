"""PPO balances a pole: acting, advantages, epochs and minibatches are one program, compiled as a whole.

The program is that of `tempo.rl.ppo`, a file to read and change. Afterwards another program lets the policy act, always
choosing what it deems best.
"""

import numpy as np

import tempo as tp
from tempo import rl


def train(iterations=100, count=8, steps=64, seed=0):
    """The trained policy's parameters, by name; what it learns is printed as it comes."""
    algorithm = rl.ppo(rl.CartPole(), iterations=iterations, count=count, steps=steps, rate=2.5e-3)
    run = algorithm.program.compile(algorithm.bounds)
    stream = run.stream(seed=seed)
    for record in stream:
        iteration = record.point["i"] + 1
        if record.name == "episode_return" and (iteration % 20 == 0 or iteration == 1):
            mean = "none ended" if np.isnan(record.value) else f"a return of {record.value:.0f}"
            print(f"after {iteration * count * steps:6} steps: episodes with {mean}")
    return {name: array for name, array in stream.result.outputs.items() if name.startswith("policy.")}


def act(parameters, episodes=16, seed=1):
    """How long the pole stays up, in each of these episodes: 500 steps are the most."""
    env = rl.CartPole()
    with tp.Program("act") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        policy = rl.Policy(env).declare(prog, "policy", init=False)
        play = rl.Rollout(env, over=t, batch=b)
        steps = play.step(policy(play.observation).mode())
        ended = steps.terminated | steps.truncated
        prog.output("length", tp.argmax(ended[b, 0:T], axis=0) + 1)
    return prog.compile({B: episodes, T: 500})(seed=seed, **parameters).length


def main():
    lengths = act(train())
    print(f"choosing the best action: {lengths.mean():.0f} of 500 steps, from {lengths.min()} to {lengths.max()}")


if __name__ == "__main__":
    main()
