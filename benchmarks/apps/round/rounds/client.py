"""One ClientApp for both; fedlada is imported only where its own message asks for it."""

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from rounds.task import EXAMPLES, LR, model, train

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    from fedlada.flower import answer_query

    return answer_query(message, context)


@app.train()
def reply(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    return flowers(message, context) if "arrays" in message.content else ours(message, context)


def flowers(message: Message, context: Context) -> Message:
    own = model()
    own.load_state_dict(message.content["arrays"].to_torch_state_dict())
    began = time.monotonic()
    train(own, context.node_config["partition-id"], torch.optim.SGD(own.parameters(), lr=LR))
    metrics = {"train": time.monotonic() - began, "num-examples": EXAMPLES}
    content = {"arrays": ArrayRecord(own.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


def ours(message: Message, context: Context) -> Message:
    from fedlada.flower import training

    cpu, own = time.process_time(), model()
    with training(message, context, own) as local:
        began = time.monotonic()
        train(own, context.node_config["partition-id"], local.optimizer())
        local.examples = EXAMPLES
        local.metrics = {"train": time.monotonic() - began, "cpu": time.process_time() - cpu}
    return local.reply
