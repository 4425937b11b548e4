package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
)

// tlsFailure names what went wrong between two parties that did not come to trust each other; kind
// is empty when it was something else.
func tlsFailure(err error) (kind, text string) {
	if verification, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return certificateFailure(verification.Err)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "not_tls", "the receiver does not speak TLS on this port"
	}
	// The alerts of either side are unexported errors, found by how they print.
	reason, ok := tlsReason(err)
	switch {
	case !ok:
		return "", ""
	case strings.Contains(reason, "version"):
		return "version", "no common version of TLS (1.2 or newer)"
	case strings.Contains(reason, "certificate"):
		return "client_certificate", "the receiver refuses our client certificate or wants one"
	}
	return "handshake", "TLS handshake refused: no common cipher, or the receiver wants a client certificate"
}

func certificateFailure(err error) (kind, text string) {
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return "expired", "the receiver's certificate has expired or is not valid yet"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "unknown_authority", "the receiver's certificate is signed by an unknown authority"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "wrong_name", "the receiver's certificate is for another name"
	}
	return "bad_certificate", "the receiver's certificate is not valid"
}

// tlsReason finds the error of crypto/tls in a chain.
func tlsReason(err error) (string, bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		op, ok := err.(*net.OpError)
		if ok && (op.Op == "remote error" || op.Op == "local error") || strings.HasPrefix(err.Error(), "tls: ") {
			return err.Error(), true
		}
	}
	return "", false
}
