#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JAX on tensors in Terrace, through DLPack: each layer's weights are leased to be written while its gradient is computed,
read where they lie, and stepped in place. Needs `pip install jax`.

    python3 client/python/examples/jax_dlpack.py

JAX's arrays do not change, so that reading needs no copy and writing is one into the leased memory. JAX computes while
Python goes on: a result must be there (`block_until_ready`) before the lease that it reads from ends.
"""

import argparse
import sys
import time

import numpy

import terrace

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    sys.exit("jax_dlpack.py needs JAX, which is not installed: pip install jax")

LAYERS, WIDTH = 8, 256


def loss_of(weight: jax.Array, hidden: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(hidden @ weight) - hidden) ** 2)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    random = numpy.random.default_rng(0)
    batch = jnp.asarray(random.standard_normal((64, WIDTH), dtype="float32"))
    value_and_gradient = jax.jit(jax.value_and_grad(loss_of))
    with terrace.serve("8MiB", metrics=False) as client:
        weights = [client.from_array(f"weight{layer}", random.standard_normal((WIDTH, WIDTH), dtype="float32") / 16)
                   for layer in range(LAYERS)]
        for step in range(3):
            losses = []
            for weight in weights:
                with weight.write() as lease:
                    leased = jnp.from_dlpack(lease, copy=False)
                    loss, gradient = value_and_gradient(leased, batch)
                    jax.block_until_ready((loss, gradient))
                    del leased
                    lease.numpy()[...] -= 0.5 * numpy.asarray(gradient)
                losses.append(float(loss))
            print(f"step {step}: loss {sum(losses) / LAYERS:.6f}")
        deadline = time.monotonic() + 60
        while client.leased_bytes and time.monotonic() < deadline:  # JAX lets go a moment after the result is there
            time.sleep(0.01)
        print(f"{client.leased_bytes} bytes leased at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
