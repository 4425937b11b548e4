package outboxtest

import (
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
)

// certify gives a server with [Options.TLS] a key and a certificate: those that Go's test servers have.
func (c *Cluster) certify(owner *int) error {
	if !c.opts.TLS {
		return nil
	}
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	key, err := x509.MarshalPKCS8PrivateKey(s.TLS.Certificates[0].PrivateKey)
	if err != nil {
		return err
	}
	if err := writePEM(c.keyFile(), "PRIVATE KEY", key, 0o600); err != nil {
		return err
	}
	if owner != nil {
		if err := os.Chown(c.keyFile(), *owner, -1); err != nil {
			return err
		}
	}
	return writePEM(c.Authority(), "CERTIFICATE", s.Certificate().Raw, 0o644)
}

func writePEM(file, kind string, der []byte, mode os.FileMode) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

// Authority returns the file for sslrootcert, of a cluster with [Options.TLS].
func (c *Cluster) Authority() string { return filepath.Join(c.dir, "server.crt") }

func (c *Cluster) keyFile() string { return filepath.Join(c.dir, "server.key") }
