package input

const nonBlocking = 0 // a browser has no named pipes
