"use strict";
// Swagger UI from the package's own files, on the document of this service; nothing is loaded from elsewhere.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  presets: [SwaggerUIBundle.presets.apis],
  validatorUrl: null,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  onComplete: () => {
    document.body.dataset.ready = "yes";
  },
});
