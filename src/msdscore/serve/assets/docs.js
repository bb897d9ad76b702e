"use strict";
// Swagger UI from the package's own files, on the document of this service; nothing is loaded from elsewhere.
const root = new URL(".", location.href).href.replace(/\/$/, ""); // with the prefix of a proxy, if there is one
fetch("openapi.json")
  .then((answer) => answer.json())
  .then((spec) =>
    SwaggerUIBundle({
      spec: { ...spec, servers: [{ url: root }] },
      dom_id: "#swagger-ui",
      presets: [SwaggerUIBundle.presets.apis],
      validatorUrl: null,
      docExpansion: "list",
      defaultModelsExpandDepth: 0,
      onComplete: () => {
        document.body.dataset.ready = "yes";
      },
    }),
  );
