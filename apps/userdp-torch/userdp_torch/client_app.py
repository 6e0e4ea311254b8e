"""The ClientApp, an ordinary one: it trains the model that it gets and sends it back. It does not use userdp."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from userdp_torch.task import load_data, make_model, train

app = ClientApp()


@app.train()
def local_training(message: Message, context: Context) -> Message:
    """Train on this user's pictures."""
    model, data = make_model(), load_data(context)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = train(model, data, context.run_config["local-epochs"], context.run_config["learning-rate"])
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(data[1])})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
