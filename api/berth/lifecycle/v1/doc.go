// Package lifecyclev1 is the generated Go form of proto/berth/lifecycle/v1.
package lifecyclev1
