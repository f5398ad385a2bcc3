// Format numbers, times and sizes.

export function clock(seconds, round = Math.floor) {
  const whole = Math.max(0, round(Math.round(seconds * 1000) / 1000)); // so that 11.0000001 rounds up to 11, not 12
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

// Ends are rounded up, as on the command line, so that the times shown contain the whole moment.
export const ending = (seconds) => clock(seconds, Math.ceil);

export const span = ({ start, end }) => `${clock(start)}–${ending(end)}`;

// The ranges of the true start and end, in tenths of a second because they are short.
export function edges({ start_range, end_range }) {
  if (!start_range || !end_range) return null;
  const [start, end] = [start_range, end_range].map((range) => range.map((time) => time.toFixed(1)).join(" and "));
  return `Starts between ${start} s, ends between ${end} s (80 % confidence each)`;
}

export function length(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(seconds < 36000 ? 1 : 0)} h`;
}

export const count = (number, word, words = `${word}s`) => `${number.toLocaleString("en")} ${number === 1 ? word : words}`;

// Rounded down, so that "50 %" is never below a threshold of 0.5.
export const percent = (share) => `${Math.floor(Math.round(share * 1e6) / 1e4)} %`;

// The probability of a match, or the score if the library is not calibrated yet.
export const rating = (hit) => (hit.confidence == null ? `score ${hit.score.toFixed(2)}` : `${percent(hit.confidence)} likely`);

export function bytes(size) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let step = 0;
  while (size >= 1000 && step < units.length - 1) [size, step] = [size / 1000, step + 1];
  return `${size >= 10 || !step ? Math.round(size) : size.toFixed(1)} ${units[step]}`;
}

export const day = (date) => new Date(date).toLocaleDateString(undefined, { dateStyle: "medium" });

// Capitalises a message: reasons from the index start with a lower-case letter.
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
