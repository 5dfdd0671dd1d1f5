// A page opened from a disk may start no worker and read nothing but scripts. There, this stands in for the worker of
// MkDocs' search: it searches in the page itself, in the index that .ci/mkdocs_hook.py writes as a script.
if (location.protocol === "file:") {
  const loaded = (address) => new Promise((done, failed) => {
    document.head.append(Object.assign(document.createElement("script"), { src: address, onload: done, onerror: failed }));
  });
  window.Worker = class {
    constructor(address) { this.folder = address.replace(/worker\.js$/, ""); }
    async postMessage({ init, query }) {
      if (!init) return this.onmessage({ data: { results: this.find(query) } });
      await loaded(`${this.folder}lunr.js`); await loaded(`${this.folder}search_index.js`);
      const { config, docs } = window.searchIndex;
      this.pages = new Map(docs.map((page) => [page.location, page]));
      this.index = lunr(function () {
        this.field("title"); this.field("text"); this.ref("location");
        for (const page of docs) this.add(page);
      });
      this.onmessage({ data: { config } }); this.onmessage({ data: { allowSearch: true } });
    }
    find(query) {
      const pages = this.index.search(query).map(({ ref }) => this.pages.get(ref));
      return pages.map((page) => ({ ...page, summary: page.text.slice(0, 200) }));
    }
  };
}

// What scrolls sideways on a narrow screen is reached by keys too; what the theme leaves outside of landmarks has one.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".rst-content footer [role=contentinfo]")?.removeAttribute("role");
  document.querySelector(".rst-content footer")?.setAttribute("role", "contentinfo");
  const turning = document.querySelector(".rst-versions");
  turning?.setAttribute("role", "navigation"); turning?.setAttribute("aria-label", "Previous and next page");
  for (const code of document.querySelectorAll(".rst-content pre code")) code.tabIndex = 0;
});
