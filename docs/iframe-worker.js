// A browser starts no worker for pages that are opened as files. There the search runs in a hidden frame instead,
// which looks like a worker to the page, and like a worker's own scope to the script of the search.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget { // the search's script looks for this name
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const scope = frame.contentWindow;
      scope.document.open(); // from here on the frame's document stays the one it is
      scope.document.close();
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = scope.document.createElement("script");
          Object.assign(script, { src: source, onload: resolve, onerror: reject });
          scope.document.documentElement.append(script);
        });
      scope.importScripts = (...sources) => sources.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      scope.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        this.onmessage?.(message);
      };
      this.frame = frame;
      this.loaded = load(url);
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
