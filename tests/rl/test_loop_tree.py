"""What the compiler makes of PPO: docs/rl.md prints the first of these trees and says why it looks so."""

from __future__ import annotations

from typing import Any

import tempo as tp
from tempo import optim, rl
from tempo.schedule.looptree import Compute, Loop, Tree


def one_update() -> tuple[tp.Program, dict[Any, int]]:
    """PPO with one update in an iteration, by the policy that acts."""
    env = rl.CartPole()
    with tp.Program("ppo") as prog:
        i, I = prog.dim("i")
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        with prog.training(over=i):
            policy: Any = rl.Policy(env, hidden=[16]).declare(prog, "policy")
            critic: Any = rl.Critic(env, hidden=[16]).declare(prog, "critic")
        play = rl.Rollout(env, over=(i, t), batch=b)
        seen = tp.stop_gradient(play.observation)
        p, v = policy(seen), critic(seen)
        action = tp.stop_gradient(p.sample())
        steps = play.step(action)
        ahead = critic(tp.stop_gradient(steps.next_observation))
        A = tp.stop_gradient(rl.gae(steps.reward, v, ahead, steps.terminated, steps.truncated, t, 0.99, 0.95))
        ratio = tp.exp(p.log_prob(action) - tp.stop_gradient(p.log_prob(action)))
        gain = tp.minimum(ratio * A, tp.clip(ratio, 0.8, 1.2) * A)
        loss = tp.mean((0.5 * tp.square(v - tp.stop_gradient(A + v)) - gain)[i, 0:B, 0:T])
        parameters: Any = prog.params
        optim.Adam(1e-3).update(parameters, tp.grad(loss, parameters))
        prog.output("loss", loss)
    return prog, {I: 3, B: 4, T: 6}


def loops(trees: tuple[Tree, ...]) -> list[Loop]:
    """All loops of several steps, from the outside in."""
    found = []
    for tree in trees:
        if isinstance(tree, Loop):
            found += [tree] if len(tree.steps) > 1 else []
            found += loops(tree.body)
    return found


def products(trees: tuple[Tree, ...], weight: str) -> int:
    """How many matrix products there are with a weight, in some trees and loops of one step, but not in other loops."""
    count = 0
    for tree in trees:
        if isinstance(tree, Compute):
            read = [edge.node.name for edge in tree.node.edges]
            count += tree.node.op.name == "einsum" and weight in read
        elif len(tree.steps) == 1:
            count += products(tree.body, weight)
    return count


def test_one_acting_loop_and_no_second_forward_pass() -> None:
    prog, bounds = one_update()
    run = prog.compile(bounds)
    iterations, acting, *rest = loops(run.schedule.trees)
    assert [loop.dim.name for loop in (iterations, acting)] == ["i", "t"]
    # The policy is computed in the acting loop, and nowhere else.
    assert products(acting.body, "policy.net.layers.0.weight") == 1
    assert products(acting.body, "policy.net.layers.1.weight") == 1
    assert products(iterations.body, "policy.net.layers.0.weight") == 0
    assert products(iterations.body, "policy.net.layers.1.weight") == 1  # of the backward pass
    # The critic is computed for all steps at once: of what was seen, and of what steps led to.
    assert products(iterations.body, "critic.net.layers.0.weight") == 2
    assert products(acting.body, "critic.net.layers.0.weight") == 0
    # No loop goes over environments, and no other has a product in it.
    assert {loop.dim.name for loop in rest} <= {"t"}
    assert "einsum" not in {tree.node.op.name for loop in rest for tree in loop.body if isinstance(tree, Compute)}


def test_one_epoch_of_one_minibatch_has_no_second_forward_pass() -> None:
    """The parameters that act and those that are learned have the same values, and become the same tensors."""
    env = rl.CartPole()
    networks = rl.Policy(env, [16]), rl.Critic(env, [16])
    algorithm = rl.ppo(env, *networks, iterations=3, count=4, steps=6, epochs=1, minibatches=1)
    run = algorithm.program.compile(algorithm.bounds)
    iterations, acting, *rest = loops(run.schedule.trees)
    assert products(acting.body, "policy.net.layers.0.weight") == 1
    assert products(iterations.body, "policy.net.layers.0.weight") == 0
    assert products(iterations.body, "critic.net.layers.0.weight") == 2
    assert {loop.dim.name for loop in rest} <= {"t"}
    assert not any(node.name.startswith("acting.") for node in run.graph.nodes)


def test_several_updates_compute_the_policy_again_for_a_minibatch_at_once() -> None:
    env = rl.CartPole()
    algorithm = rl.ppo(
        env, rl.Policy(env, [16]), rl.Critic(env, [16]), iterations=3, count=4, steps=6, epochs=2, minibatches=2
    )
    run = algorithm.program.compile(algorithm.bounds)
    iterations, acting, *rest = loops(run.schedule.trees)
    assert (iterations.dim.name, acting.dim.name) == ("i", "t")
    assert products(acting.body, "acting.policy.net.layers.0.weight") == 1
    assert products(iterations.body, "acting.policy.net.layers.0.weight") == 0
    (updates,) = (loop for loop in rest if loop.dim.name == "m")
    assert products(updates.body, "policy.net.layers.0.weight") == 1


def test_a_tree_with_some_names_only() -> None:
    prog, bounds = one_update()
    run = prog.compile(bounds)
    assert run.loop_tree() in run.explain()
    assert run.loop_tree("advantages") == "\n".join(
        [
            "for i in 0 .. 2:",
            "    at t = 6:",
            "        advantages = recurrent() (case 1)",
            "    for t in 5 .. 0, backwards:",
            "        advantages = recurrent() (case 2)",
        ]
    )
    assert run.loop_tree("nothing of this name") == ""
