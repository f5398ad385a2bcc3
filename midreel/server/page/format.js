// Numbers as people read them.

export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds + 1e-6));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

// A moment that lasts less than a second is still one.
export function span({ start, end }) {
  return clock(start) === clock(end) ? clock(start) : `${clock(start)}–${clock(end)}`;
}

export function length(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(seconds < 36000 ? 1 : 0)} h`;
}

export const count = (number, word, words = `${word}s`) => `${number.toLocaleString("en")} ${number === 1 ? word : words}`;

export function bytes(size) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let step = 0;
  while (size >= 1000 && step < units.length - 1) [size, step] = [size / 1000, step + 1];
  return `${size >= 10 || !step ? Math.round(size) : size.toFixed(1)} ${units[step]}`;
}

export const day = (date) => new Date(date).toLocaleDateString(undefined, { dateStyle: "medium" });

// Messages of the server begin small, as parts of a line in a log do.
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
