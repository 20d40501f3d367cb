//go:build !race

package allocs

const raceDetector = false
