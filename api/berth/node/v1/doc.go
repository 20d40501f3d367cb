// Package nodev1 is the generated Go form of proto/berth/node/v1.
package nodev1
