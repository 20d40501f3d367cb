// Package fitv1 is the generated Go form of proto/berth/fit/v1.
package fitv1
