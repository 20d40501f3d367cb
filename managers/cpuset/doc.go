// Package cpuset holds sets of CPU ids.
package cpuset
