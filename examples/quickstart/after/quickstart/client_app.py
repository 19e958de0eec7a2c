"""The ClientApp."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedlada.flower import answer_query, evaluating, training
from quickstart.task import Net, accuracy, load_data, train

app = ClientApp()
app.query()(answer_query)


@app.train()
def fit(message: Message, context: Context) -> Message:
    node = context.node_config
    loader, _ = load_data(node["partition-id"], node["num-partitions"])
    model = Net()
    with training(message, context, model) as local:
        loss = train(model, loader, local.optimizer())
        local.metrics, local.examples = {"loss": loss}, len(loader.dataset)
    return local.reply


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    node = context.node_config
    _, loader = load_data(node["partition-id"], node["num-partitions"])
    model = Net()
    with evaluating(message, context, model) as local:
        right = accuracy(model, loader)
        local.metrics, local.examples = {"accuracy": right}, len(loader.dataset)
    return local.reply
