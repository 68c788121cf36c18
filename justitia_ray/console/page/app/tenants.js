/** A colour for each tenant, the same in every view for as long as the page is open. */
const COLOURS = 10;
const places = new Map();

/** Give the tenants colours in the order of their names; those that have one keep it. */
export function learnTenants(tenants) {
  for (const tenant of [...tenants].sort()) {
    if (!places.has(tenant)) places.set(tenant, places.size % COLOURS);
  }
}

/** Return the name of the tenant's colour in the style sheet. */
export function tenantColour(tenant) {
  if (!places.has(tenant)) learnTenants([tenant]);
  return `tenant-${places.get(tenant)}`;
}
