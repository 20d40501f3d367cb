// Package inspectv1 is the generated Go form of proto/berth/inspect/v1.
package inspectv1
