"""The ClientApp."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedlada.flower import answer_query, training
from trainers import trainer
from trainers.task import client_data, model

app = ClientApp()
app.query()(answer_query)


@app.train()
def reply(message: Message, context: Context) -> Message:
    train = trainer(str(context.run_config["trainer"]))
    node, own = context.node_config, model()
    data = client_data(int(node["partition-id"]), int(node["num-partitions"]))
    with training(message, context, own) as local:
        local.metrics = train(own, data, local.optimizer())
        local.examples = len(data)
    return local.reply
