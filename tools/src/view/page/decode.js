// Numbers as the program packed them, and numbers as people read them.

// The bytes that a text in base64 stands for.
function bytesOf(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

// A column: seven bits a byte, the lowest first; differences have their sign in the lowest bit.
function column(bytes, [start, count, differences], Kind = Float64Array) {
  const numbers = new Kind(count);
  let at = start;
  let sum = 0;
  for (let i = 0; i < count; i++) {
    let byte = bytes[at++];
    let number = byte & 127;
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = bytes[at++];
      number += (byte & 127) * scale;
    }
    if (differences) {
      sum += number % 2 ? -(number + 1) / 2 : number / 2;
      numbers[i] = sum;
    } else {
      numbers[i] = number;
    }
  }
  return numbers;
}

// The place of the last number that is not above a value; -1 if all are. The numbers ascend.
function lastNotAbove(numbers, value) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (numbers[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

// Bytes for people: exact below 1 KiB, else with two decimals.
function size(bytes, decimals = 2) {
  if (bytes < 1024) return `${bytes} B`;
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1023.995 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(decimals)} ${UNITS[unit]}`;
}

function count(number) {
  return number.toLocaleString("en-US");
}

function exactly(bytes) {
  return bytes < 1024 ? size(bytes) : `${size(bytes)} (${count(bytes)} B)`;
}

// A duration in microseconds.
function duration(us) {
  if (us < 1000) return `${us.toFixed(0)} µs`;
  if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e5 ? 2 : 1)} ms`;
  return `${(us / 1e6).toFixed(us < 1e7 ? 3 : 2)} s`;
}
