/** A modal dialog that opens when it is drawn. */
import { useLayoutEffect, useRef } from "../vendor/preact-hooks.mjs";
import { html } from "./html.js";

/** @param {{title: string, onClose?: () => void, children: any}} props Escape calls `onClose` */
export function Dialog({ title, onClose, children }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const [dialog, before] = [box.current, document.activeElement];
    dialog.showModal();
    return () => {
      dialog.close();
      const isThere = before !== document.body && before.isConnected;
      (isThere ? before : document.getElementById("content")).focus();
    };
  }, []);
  return html`<dialog
    ref=${box}
    aria-label=${title}
    onCancel=${(event) => {
      event.preventDefault();
      onClose?.();
    }}
  >
    <h2>${title}</h2>
    ${children}
  </dialog>`;
}
