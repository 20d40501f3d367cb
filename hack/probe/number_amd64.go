package main

// sysRenameat2 is renameat2(2), which package syscall lacks.
const sysRenameat2 = 316
