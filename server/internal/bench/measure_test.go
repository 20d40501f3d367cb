package bench

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// measure runs an operation as a benchmark and reports the processor time that it
// takes beside the time on the clock: on a busy machine that is the one to
// compare.
func measure(b *testing.B, do func() error) {
	b.Helper()
	b.ReportAllocs()
	start := processorTime(b)
	for b.Loop() {
		if err := do(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(processorTime(b)-start)/float64(b.N), "cpu-ns/op")
}

// processorTime is what this process has used of all processors, the garbage
// collector included.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// runDir makes a folder in memory, as /run is, for the socket and the claim records, which
// lie beside it. On systems without such a place it is on disk.
func runDir() (string, error) {
	if dir, err := os.MkdirTemp("/dev/shm", "bench"); err == nil {
		return dir, nil
	}
	return os.MkdirTemp("", "bench")
}
