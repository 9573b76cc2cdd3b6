// The blocks of data, which stand in the page as JSON, packed by gzip and written in base64.
if (!("DecompressionStream" in window)) {
  document.getElementById("too-old").hidden = false;
  return; // from the function that all files of the page stand in
}

/** The data of the block of that name. */
async function unpacked(name) {
  const letters = atob(document.getElementById(name).textContent);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at += 1) bytes[at] = letters.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** A column of figures out of digits and powers of ten; null where there is none. */
function figureColumn({ digits, powers }) {
  const width = digits.length / powers.length;
  return powers.map((power, row) =>
    power == null ? null : Number(`${digits.slice(row * width, (row + 1) * width)}e${power}`),
  );
}
