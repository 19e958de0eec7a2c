"""``fedlada.simulate``: a whole federation on one machine, as an iterable of round records."""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, Unpack, cast

import torch
from torch import nn

from .algorithms import ALGORITHMS, Algorithm, algorithm as named_algorithm
from .client.round import D, Train
from .client.store import DiskStore, MemoryStore, Store
from .devices import by_rank, device_of, home, seeded
from .engines.client_evaluation import ClientEvaluation
from .engines.devices import Devices
from .engines.in_process import InProcess
from .engines.ranks import Ranks, launched
from .engines.sites import ClientDatasets, names_of, sites
from .engines.timed import Timed, Timetable, work_of
from .engines.workers import Workers, check_fork
from .errors import FedladaError, require
from .protocol.engine import Engine
from .protocol.federated import PERSONAL, clients_keep, federated_parameters
from .protocol.seeds import seed_of
from .results.plot import Against, plot
from .server.evaluation import Survey
from .server.plan import OtherSettings, Plan
from .server.record import RoundRecord
from .server.sampling import Sampler
from .server.saving.checkpoint import Checkpoints
from .server.server import Evaluate, Server
from .server.state import ServerState
from .server.watch import Callback, Watcher, watchers, watching
from .server.watch.progress import shown
from .training.evaluation import Evaluation
from .training.examples import examples_in
from .training.local import LocalTraining

if TYPE_CHECKING:
    from .results.plot import Figure

__all__ = ["Simulation", "simulate"]


class Simulation(Generic[D]):
    """A federation that runs while you iterate over it.

    It locks the directory of its checkpoints until all rounds are done, until :meth:`close`, or
    until the end of a ``with`` block.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        server: Server,
        evaluate: Evaluate | None,
        workers: Workers | Ranks | None = None,
        *,
        data: ClientDatasets[D],
        timetable: Timetable | None = None,
        survey: Survey | None = None,
        quiet: bool = False,
    ) -> None:
        self.plan = plan
        self.names = names_of(data)
        """The names of the clients by their numbers, such as those of sites; empty if they have
        none."""
        self._clients, self._quiet, self._note = len(data), quiet, _equal_weights(plan, data)
        self.state = server.state
        """The server's state after the last record; pass it to :func:`simulate` to continue."""
        self.resumed = server.resumed
        """The record of the last saved round if the run continues from a checkpoint, else None."""
        self.records = server.records
        """The records of all rounds so far, also of those before a resume."""
        self.score = evaluate.score if isinstance(evaluate, Evaluation) else None
        """The name of the metric by which models are compared, if :class:`Evaluation` says it."""
        self._server, self._workers, self._engine = server, workers, engine
        self._survey = survey
        timed = engine if timetable is None else Timed(engine, timetable, server.state)
        self._running = self._rounds(timed, evaluate)

    def __iter__(self) -> Iterator[RoundRecord]:
        return self._running

    def __repr__(self) -> str:
        done = f"{self.state.round} of {self.plan.rounds} rounds done"
        return f"Simulation({self.plan.summary(self.state.vectors.x, self._clients)}; {done})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of rounds that are left, as ``tqdm(run)`` counts them."""
        return self.plan.rounds - self.state.round

    def __bool__(self) -> bool:
        return True  # a run that is done is still a run

    def run(self) -> list[RoundRecord]:
        """Run the remaining rounds and return their records.

        A terminal shows the progress on one line, unless the run is ``quiet``.
        """
        if self._quiet or not sys.stderr.isatty():
            return list(self._running)
        done, rounds = self.state.round, self.plan.rounds
        return list(shown(self._running, sys.stderr, done=done, rounds=rounds))

    def plot(self, metric: str | None = None, *, against: Against = "round") -> Figure:
        """Draw a metric by rounds, of the rounds run so far, and return matplotlib's figure.

        By default it is the score of the evaluation.  :func:`fedlada.plot` draws several runs.
        """
        return plot(self, metric=metric, against=against)

    def close(self) -> None:
        """Release the directory of the checkpoints for another run, and end the workers."""
        self._server.close()
        if self._workers is not None:
            self._workers.close()

    @property
    def model(self) -> nn.Module:
        """A copy of the model with the server's current parameters."""
        if not self.state.round:
            warnings.warn(
                "no round has run yet, so this is the first model: call run(), or iterate over the"
                " simulation",
                stacklevel=2,
            )
        return self._server.model()

    def model_of(self, client: int | str) -> nn.Module:
        """Return a copy of the model with what this client keeps: its personal parts and buffers.

        ``client`` is a number, or the name of a site.  A client that has not taken part yet has
        the parts that all clients begin with.
        """
        require(
            isinstance(self._engine, InProcess),
            "the clients of this run have an engine of their own, and their personal parts do not"
            " leave it; evaluate them there",
        )
        return cast(InProcess[D], self._engine).model_of(self.state, client)

    def _rounds(self, engine: Engine, evaluate: Evaluate | None) -> Iterator[RoundRecord]:
        if isinstance(self._workers, Ranks) and self._workers.rank:
            self._workers.serve()
            self.close()
            return
        if not self._quiet:
            summary = self.plan.summary(self.state.vectors.x, self._clients)
            print(f"fedlada: {summary}{self._note}", file=sys.stderr, flush=True)
        try:
            for record in self._server.rounds(
                engine, evaluate=evaluate, survey=self._survey, collector=self._workers
            ):
                self._tell()
                yield record
        except Exception:
            self.close()
            raise
        finally:
            if self._workers is not None:  # also after an interrupt
                self._workers.close()
        self.close()

    @property
    def at_once(self) -> int | str:
        """How many clients are trained at once; ``auto`` as long as that is not chosen."""
        return cast(int | str, self._server.numerics["at_once"])

    def _tell(self) -> None:
        """Note what ``at_once="auto"`` has chosen, for checkpoints, and print it."""
        choice = self._engine.choice if isinstance(self._engine, InProcess) else None
        if choice is not None and choice.made is not None and self.at_once == "auto":
            self._server.numerics["at_once"] = choice.made
            if not self._quiet:
                print(f"fedlada: {choice}", file=sys.stderr, flush=True)


def simulate(
    model: nn.Module | Callable[[], nn.Module],
    data: ClientDatasets[D] | Mapping[str, D],
    *,
    algorithm: Algorithm | Mapping[str, Any] | str = "fedlada",
    lr: float | None = None,
    rounds: int = 100,
    cohort: Sampler | int | float | str = 10,
    seed: int = 0,
    train: Train[D] | None = None,
    evaluate: Evaluate | None = None,
    evaluate_clients: ClientEvaluation[D] | ClientDatasets[D] | Mapping[str, D] | None = None,
    checkpoints: Checkpoints | str | Path | None = None,
    config: Mapping[str, object] | None = None,
    devices: Devices | Mapping[str, Any] | None = None,
    workers: int | None = None,
    at_once: int | Literal["auto"] = 1,
    store: Store | None = None,
    engine: Engine | None = None,
    state: ServerState | None = None,
    callbacks: Sequence[Callback | Watcher] = (),
    quiet: bool = False,
    **settings: Unpack[OtherSettings],
) -> Simulation[D]:
    """Train ``model`` over the clients in ``data``, in this process or in several ``workers``.

    ``data[i]`` is the data of client i and is passed to ``train(model, data[i], optimizer)``; a
    dict has the data of each site by its name, which then stands in messages and figures.  The
    default ``train`` is :class:`LocalTraining`: 50 steps of batch size 50.  It takes
    ``(inputs, labels)`` as tensors or arrays, or a map-style ``Dataset``, for each client;
    ``fedlada.data.split`` and ``by_owner`` make such clients of one set.

    ``algorithm`` is one of :data:`ALGORITHMS`, or an :class:`Algorithm`; ``lr`` replaces its
    learning rate.  ``cohort`` is the number of clients of each round, a share of them such as 0.1,
    or ``"all"``; a federation of fewer than ten clients takes all by default.  Every client counts
    equally, however many examples it has, unless ``weighting`` is ``"examples"``.  ``settings`` are
    those of a :class:`Plan`: ``lr_decay``, ``weighting``, ``close_after``, ``deadline``,
    ``staleness``, ``aging``, ``minimum``, ``guard``, ``aggregator``, ``buffers``, ``personal``,
    ``codec``, ``privacy``, ``masks`` and ``evaluate_every``.  The first round prints what the run
    will do to standard error, unless ``quiet``.

    ``evaluate(model)`` evaluates the server's model.  ``evaluate_clients`` are held-out examples of
    each client, or a :class:`ClientEvaluation` that also says how and how often: every client
    evaluates the new model, with its own personal parts and local buffers, and records have the
    mean, the median, the mean of the worst tenth and the metrics of each client.

    All randomness of the rounds follows from ``seed``.  ``model`` itself is not changed; if it is
    a function that makes the model, its first weights follow from ``seed``, too.  With the
    ``state`` (and ``store``) of an earlier run, the run continues from there until ``rounds``
    rounds are done in total.  With an ``engine``, the engine runs the clients and keeps their
    vectors; ``train`` and ``data`` then only describe the run.

    With a directory for ``checkpoints``, a run that was killed at any moment continues when the
    same call is made again, and its result has the same bits.  Put everything else that affects
    the result, such as how the data were split, into ``config``: a directory refuses a run with
    another configuration.

    Each of the ``callbacks`` is called with the record of every round, once it is saved: functions,
    or the trackers of :mod:`fedlada.results.tracking`.

    With ``devices``, clients are slow, far away or absent as :class:`fedlada.engines.Devices` say:
    replies arrive in that order, ``close_after`` and ``deadline`` apply to it, and records have
    the simulated ``time``.  With ``staleness``, too, replies that come after a round was closed
    still count, in a later one: rounds wait for nobody.

    With ``workers``, as many forked processes share the clients of each round, with one thread
    each; a script that ``torchrun`` started shares them among its ranks, and rank 0 has the records
    and the result.  The bits are those of one process with one thread
    (``torch.set_num_threads(1)``), and a run may be continued with another number of workers.

    With ``at_once``, that many clients of a cohort are trained together, as one model: small models
    then take a tenth of the time.  Last bits may differ.  ``"auto"`` tries both ways in the first
    rounds and takes the faster; a run that is resumed keeps what was chosen.

    >>> run = simulate(LeNet, clients, algorithm="fedcm", lr=0.5, rounds=20)
    >>> for record in run:
    ...     print(record.round, record.client_metrics)
    """
    data = sites(data)
    _check(settings, algorithm, callbacks, train=train, evaluate=evaluate)
    _check_prepared(train, evaluate)
    cohort = min(cohort, len(data)) if isinstance(cohort, int) and cohort == 10 else cohort
    algorithm = algorithm if lr is None else named_algorithm(algorithm, lr=lr)
    plan = Plan(algorithm=algorithm, rounds=rounds, cohort=cohort, seed=seed, **settings)
    shared = _shared(workers, engine)
    together = _together(at_once, plan, len(data), workers or 1, engine)
    training = train if train is not None else cast(Train[D], LocalTraining())
    saving = Checkpoints(checkpoints) if isinstance(checkpoints, str | Path) else checkpoints
    working, scratch = _placed(_working(model, plan.seed), shared), None
    lasting = bool(plan.personal) or plan.buffers == "local"  # model_of reads it after the run
    if engine is None:
        store, scratch = _kept(plan, store, saving, shared)
        parts = plan.algorithm, working, data, training
        engine = InProcess(
            *parts, store=store, buffers=plan.buffers, personal=plan.personal, at_once=together
        )
    timetable = _timetable(plan, working, devices, training, data)
    ends = None if lasting else scratch
    pool = _pool(plan, engine, working, shared, workers, scratch=ends, timetable=timetable)
    timing = {} if timetable is None else {"devices": timetable.devices}
    described = {"clients": len(data), "train": training, **timing, **(config or {})}
    threads = 1 if shared == "workers" else torch.get_num_threads()
    numerics = {"threads": threads, "at_once": at_once}
    server = _server(pool, plan, working, state, saving, described, numerics, callbacks)
    if isinstance(engine, InProcess) and engine.choice is not None:
        engine.choice.keep(server.numerics["at_once"])
    _begin_personal(engine, server.state, pool)
    run: Simulation[D] = Simulation(
        *(plan, engine, server, evaluate, pool),
        data=data,
        timetable=timetable,
        survey=_survey(evaluate_clients, plan, engine, training),
        quiet=quiet,
    )
    if lasting and scratch is not None:
        weakref.finalize(run, _delete, os.getpid(), scratch)
    return run


def _server(
    pool: Workers | Ranks | None,
    plan: Plan,
    model: nn.Module,
    state: ServerState | None,
    saving: Checkpoints | None,
    config: Mapping[str, object],
    numerics: Mapping[str, object],
    callbacks: Sequence[Callback | Watcher],
) -> Server:
    """Return the server; of several ranks, the first alone saves and reports."""
    helps = isinstance(pool, Ranks) and pool.rank > 0
    return Server(
        *(plan, model),
        state=state,
        checkpoints=None if helps else saving,
        config=config,
        numerics=numerics,
        watch=list if helps else lambda: [*watchers(), *map(watching, callbacks)],
    )


def _check_privacy(plan: Plan, devices: object, train: object) -> None:
    """Refuse what a private run cannot have in a simulation."""
    if plan.privacy is None:
        return
    require(
        devices is None,
        "there are devices and privacy: the time at which a round ends tells which clients took"
        " part; leave devices out",
    )
    steps, assumed = getattr(train, "steps", None), plan.privacy.steps
    require(
        type(steps) is not int or steps == assumed,
        f"clients take {steps} local steps, and privacy assumes {assumed}, by which the server"
        f" divides; give privacy steps = {steps}",
    )


def _begin_personal(engine: Engine, state: ServerState, pool: Workers | Ranks | None) -> None:
    """Give clients the first values of their personal parts, if they have any.

    A resumed run has those of its start, whatever the model is now; ranks have those of one.
    """
    if PERSONAL not in state.vectors or not isinstance(engine, InProcess):
        return
    engine.newcomer = state.vectors.personal
    if isinstance(pool, Ranks):
        pool.agree(engine.newcomer)


def _survey(
    clients: ClientEvaluation[D] | ClientDatasets[D] | Mapping[str, D] | None,
    plan: Plan,
    engine: Engine,
    train: Train[D],
) -> Survey | None:
    """Return the server's hook that has the clients evaluate the model, if they are to do so."""
    if clients is None:
        return None
    require(
        isinstance(engine, InProcess),
        "evaluate_clients is given, and the clients have an engine of their own, which cannot"
        " evaluate them; leave evaluate_clients or engine out",
    )
    evaluation = (
        clients if isinstance(clients, ClientEvaluation) else ClientEvaluation(data=clients)
    )
    return evaluation.survey(plan, cast(InProcess[D], engine), train)


def _timetable(
    plan: Plan,
    model: nn.Module,
    devices: Devices | Mapping[str, Any] | None,
    train: object,
    data: ClientDatasets[D],
) -> Timetable | None:
    """Return when clients answer, if they have devices; otherwise nobody is ever late."""
    _check_privacy(plan, devices, train)
    if devices is None:
        require(
            not plan.staleness,
            f"staleness is {plan.staleness} and clients have no devices, so nobody is late: give"
            " devices=fedlada.engines.Devices(), or leave staleness out",
        )
        require(
            plan.deadline is None,
            f"deadline is {plan.deadline} and clients have no devices, so nobody is late: give"
            " devices=fedlada.engines.Devices(), or leave deadline out",
        )
        return None
    chosen = Devices.read(devices)
    return Timetable(chosen, work_of(plan, model, chosen, train, data), plan.deadline)


def _equal_weights(plan: Plan, data: object) -> str:
    """Return a line that says that clients of very different sizes count equally, or nothing.

    Algorithms whose server sums up vectors of the clients need equal weights.
    """
    sizes: Sequence[int] = getattr(data, "sizes", ())
    if isinstance(data, list | tuple) and all(hasattr(each, "__len__") for each in data):
        sizes = [examples_in(each) for each in data]
    if not sizes or plan.weighting != "uniform" or plan.algorithm.sums:
        return ""
    least, most = min(sizes), max(sizes)
    if most <= 2 * least:
        return ""
    return (
        f"\nfedlada: clients count equally although they have {least} to {most} examples;"
        " weighting='examples' counts each by its number of examples"
    )


def _delete(owner: int, directory: str) -> None:
    """Delete a directory, in the process that made it: its workers have copies of all objects."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


def _working(model: object, seed: int) -> nn.Module:
    """Return a copy of the model, or the model that a function makes, its weights by the seed."""
    if isinstance(model, nn.Module) or not callable(model):
        federated_parameters(cast(nn.Module, model))
        return copy.deepcopy(cast(nn.Module, model))
    with seeded(seed_of(seed, "model")):
        try:
            made = model()
        except TypeError as error:
            raise FedladaError(
                f"model is {model!r:.100}, and calling it without arguments failed ({error}); give"
                " a model, or a function that makes one, such as lambda: Net(10)"
            ) from error
    federated_parameters(made)
    return cast(nn.Module, made)


def _placed(model: nn.Module, shared: Literal["workers", "ranks"] | None) -> nn.Module:
    """Move a model that is on the first GPU to that of this rank; workers can have none."""
    if shared == "workers":
        check_fork(model)
    device = device_of(model)
    if shared == "ranks" and device.index == 0:
        return model.to(by_rank(torch.device(device.type)))
    return model


def _shared(workers: int | None, engine: Engine | None) -> Literal["workers", "ranks"] | None:
    """Return what shares the clients of a round; None if one process trains them all."""
    if workers is None:
        return "ranks" if engine is None and launched() else None
    require(
        type(workers) is int and workers >= 1,
        f"workers is {workers!r}; it must be a whole number of processes, 1 or more",
    )
    if workers == 1:
        return None
    require(
        engine is None,
        f"workers is {workers} and there is an engine, which runs the clients itself; give one of"
        " the two",
    )
    require(
        not launched(),
        f"workers is {workers}, and torchrun has started several processes already; leave workers"
        " out, and choose their number with --nproc-per-node",
    )
    return "workers"


def _together(
    at_once: int | Literal["auto"], plan: Plan, clients: int, workers: int, engine: Engine | None
) -> int | Literal["auto"]:
    """Return how many clients each process trains at once, so that every process has its share."""
    require(
        at_once == "auto" or (type(at_once) is int and at_once >= 1),
        f"at_once is {at_once!r}; it must be a number of clients, 1 or more, or 'auto'",
    )
    require(
        engine is None or at_once == 1,
        f"at_once is {at_once!r} and there is an engine, which trains the clients itself; give one"
        " of the two, such as engine=fedlada.engines.InProcess(..., at_once=100)",
    )
    if at_once == "auto" or workers == 1:
        return at_once
    return min(at_once, -(-len(plan.cohort.cohort(plan.seed, 0, clients)) // workers))


def _pool(
    plan: Plan,
    engine: Engine,
    model: nn.Module,
    shared: Literal["workers", "ranks"] | None,
    workers: int | None,
    *,
    scratch: str | None,
    timetable: Timetable | None,
) -> Workers | Ranks | None:
    """Return the processes that share the clients of a round, if there are several."""
    if shared == "workers":
        return Workers(cast(int, workers), plan, engine, scratch, timetable=timetable)
    if shared == "ranks":
        return Ranks(plan, engine, home(device_of(model)), timetable=timetable)
    return None


def _kept(
    plan: Plan, store: Store | None, saving: Checkpoints | None, shared: str | None
) -> tuple[Store | None, str | None]:
    """Return where clients keep their vectors, and a directory to delete with the run."""
    if not clients_keep(plan.algorithm, plan.buffers, plan.personal):
        return store, None
    scratch = None
    if store is None and saving is None and shared == "workers":
        scratch = tempfile.mkdtemp(prefix="fedlada-")
    return _store(store, scratch if saving is None else saving.clients, shared), scratch


def _store(store: Store | None, directory: str | Path | None, shared: str | None) -> Store | None:
    """Return where clients keep their vectors: files, if more than one process needs them."""
    require(
        shared is None or not isinstance(store, MemoryStore),
        "the store is a MemoryStore, and several processes share no memory; give"
        " store=fedlada.engines.DiskStore(directory)",
    )
    if store is None and directory is not None:
        return DiskStore(directory)
    require(
        store is not None or shared is None,
        "clients keep vectors between rounds, and each may be on another rank next time; give"
        " checkpoints, or store=fedlada.engines.DiskStore(directory), in a directory that all"
        " ranks share",
    )
    return store


def _check(
    settings: Mapping[str, object], algorithm: object, callbacks: object, **called: object
) -> None:
    """Check what can be checked before the first round."""
    require(
        isinstance(callbacks, list | tuple),
        f"callbacks is {callbacks!r:.100}; give a list of functions, such as [print]",
    )
    for name, function in called.items():
        require(
            function is None or callable(function),
            f"{name} is {function!r:.100}; it must be a function, or left out",
        )
    _check_names(settings, algorithm)


def _check_prepared(train: object, evaluate: object) -> None:
    """Warn if inputs are scaled in training and not in the evaluation."""
    plain = getattr(getattr(train, "prepare", None), "plain", None)
    if plain is not None and isinstance(evaluate, Evaluation) and evaluate.prepare is None:
        warnings.warn(
            "the training scales its inputs and the evaluation does not, so the model is measured"
            " on other numbers than it was trained on; give Evaluation a prepare, too: that of the"
            " training, or its plain part",
            stacklevel=3,
        )


def _check_names(given: Mapping[str, object], algorithm: object) -> None:
    """Say where a setting belongs that is none of a plan's, and is known elsewhere."""
    training = [f.name for f in dataclasses.fields(LocalTraining)]
    for name, value in given.items():
        if name == "device":
            raise FedladaError(
                f"device={value!r:.50} is no setting, because all follows the model; give"
                f" model.to(fedlada.devices.chosen({value!r:.50}))"
            )
        if name in training:
            raise FedladaError(
                f"{name}={value!r:.50} is a setting of the local training; give"
                f" train=fedlada.LocalTraining({name}={value!r:.50})"
            )
        having = [each for each, known in ALGORITHMS.items() if name in known.settings()]
        if having:
            raise FedladaError(
                f"{name}={value!r:.50} is a setting of an algorithm; give algorithm="
                f'fedlada.algorithm("{algorithm if algorithm in having else having[0]}",'
                f" {name}={value!r:.50})"
            )
