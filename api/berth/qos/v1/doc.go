// Package qosv1 is the generated Go form of proto/berth/qos/v1.
package qosv1
