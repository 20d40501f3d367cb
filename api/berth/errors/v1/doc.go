// Package errorsv1 is the generated Go form of proto/berth/errors/v1.
package errorsv1
