// Package hintv1 is the generated Go form of proto/berth/hint/v1.
package hintv1
