// Search on pages that are opened from a disk: browsers refuse them workers, so the search worker runs in a hidden frame.
// Material for MkDocs looks for the class under this name.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    frame.srcdoc = `<body><script>postMessage = data => parent.postMessage(data, "*")</script><script src="${url}"></script>`;
    this.ready = new Promise(resolve => frame.addEventListener("load", () => resolve(frame.contentWindow)));
    window.addEventListener("message", ({source, data}) => {
      if (source === frame.contentWindow) this.dispatchEvent(new MessageEvent("message", {data}));
    });
    document.body.append(frame);
  }

  postMessage(data) {
    this.ready.then(worker => worker.dispatchEvent(new MessageEvent("message", {data})));
  }
}
window.IFrameWorker = IFrameWorker;
if (location.protocol === "file:") window.Worker = IFrameWorker;
