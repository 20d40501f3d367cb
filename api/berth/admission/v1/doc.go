// Package admissionv1 is the generated Go form of proto/berth/admission/v1.
package admissionv1
