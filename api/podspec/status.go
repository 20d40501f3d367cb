package podspec

import (
	corev1 "k8s.io/api/core/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// rejected precedes the message of every rejected pod, as controllers know it from the kubelet.
const rejected = "Pod was rejected: "

// Status gives the status that an agent reports for a pod after an admission: Failed with reason and message for a
// rejected pod, Pending for one that may start or has to wait.
func Status(answer *admissionv1.AdmitResponse) corev1.PodStatus {
	s := corev1.PodStatus{Phase: corev1.PodPending, QOSClass: QoSClass(answer.GetQosClass())}
	switch answer.GetVerdict() {
	case admissionv1.Verdict_VERDICT_REJECTED:
		s.Phase = corev1.PodFailed
		s.Reason = answer.GetReason()
		s.Message = rejected + answer.GetMessage()
	case admissionv1.Verdict_VERDICT_DEFERRED:
		s.Reason = answer.GetReason()
		s.Message = answer.GetMessage()
	}
	return s
}

// QoSClass returns the name of a class in Kubernetes; empty if it is not specified.
func QoSClass(c typesv1.QOSClass) corev1.PodQOSClass {
	switch c {
	case typesv1.QOSClass_QOS_CLASS_GUARANTEED:
		return corev1.PodQOSGuaranteed
	case typesv1.QOSClass_QOS_CLASS_BURSTABLE:
		return corev1.PodQOSBurstable
	case typesv1.QOSClass_QOS_CLASS_BEST_EFFORT:
		return corev1.PodQOSBestEffort
	}
	return ""
}
