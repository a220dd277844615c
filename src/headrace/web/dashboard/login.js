// The login page. It goes back to the page that sent us here, which the address's fragment names.
import { change } from "./dom.js";

const form = document.getElementById("login");
const told = document.getElementById("told");
const local = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
document.getElementById("plain").hidden = location.protocol === "https:" || local;

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  told.textContent = "";
  const client = form.elements.client_id.value.trim();
  const key = form.elements.key.value;
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    await change("/login", client ? { client_id: client, key } : { token: key });
    location.replace(`/${location.hash}`);
  } catch (error) {
    told.textContent = error.message;
    form.elements.key.value = "";
    form.elements.key.focus();
  } finally {
    button.disabled = false;
  }
});

form.elements.client_id.focus();
