"""Collecting data with a policy in its environment, for finetuning online; a run that has done so is marked.

    from offrl.interaction.collection import Buffer, collect

    run = Run.open("runs/builtin-pendulum-medium/td3_bc-0123abcd")
    with Simulators("Pendulum-v1", count=4) as simulators:
        buffer = Buffer.empty(100_000, simulators.spaces)
        buffer = collect(run, run.actor(30_000), simulators, np.arange(4), buffer)    # one episode of each reset seed
    transitions = buffer.transitions(run.info["dataset"]["transforms"])    # batches: from the first buffer.size rows

From then on the run is no longer offline: run.json says `"interacted": {env, steps, episodes}`, `offrl.evaluate` and
`offrl.report` show it, and `offrl.select` refuses the run. How the transitions are used is the algorithm's choice.
"""
