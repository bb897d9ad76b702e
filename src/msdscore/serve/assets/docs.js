"use strict";
// Swagger UI for the OpenAPI document of this service; all files are part of the package.
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
