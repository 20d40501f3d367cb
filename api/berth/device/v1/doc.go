// Package devicev1 is the generated Go form of proto/berth/device/v1.
package devicev1
