// Package typesv1 is the generated Go form of proto/berth/types/v1.
package typesv1
