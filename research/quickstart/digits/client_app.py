"""A writer trains on the digits of its own."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import Net, load_writer, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train the model of the round, and reply with it."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = load_writer(context.run_config["data"], context.node_config["partition-id"])
    loss = train(net, data, message.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
