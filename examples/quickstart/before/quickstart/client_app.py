"""The ClientApp."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, accuracy, load_data, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    node = context.node_config
    loader, _ = load_data(node["partition-id"], node["num-partitions"])
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = train(model, loader, optimizer)
    metrics = MetricRecord({"loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    node = context.node_config
    _, loader = load_data(node["partition-id"], node["num-partitions"])
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    right = accuracy(model, loader)
    metrics = MetricRecord({"accuracy": right, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
