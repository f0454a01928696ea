#!/bin/bash
# Makes an authority, a server's certificate for 127.0.0.1 and localhost, and a client's; keys without passwords.
set -e
cd "$(dirname "$0")"
days=36500
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days $days -subj "/CN=Coterie tests" -addext "keyUsage=critical,keyCertSign" \
    -keyout authority.key -out authority.pem
sign() { # sign NAME SUBJECT EXTENSIONS
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "$2" -keyout "$1.key" -out "$1.csr"
    openssl x509 -req -in "$1.csr" -CA authority.pem -CAkey authority.key -CAcreateserial -days $days \
        -extfile <(printf "%s\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n" "$3") -out "$1.crt"
    cat "$1.key" "$1.crt" >"$1.pem"
    rm "$1.key" "$1.csr" "$1.crt"
}
sign server "/CN=server" "subjectAltName=IP:127.0.0.1,DNS:localhost"
sign client "/CN=client" "extendedKeyUsage=clientAuth"
rm authority.key authority.srl
# The same in Java's stores, with the password "changeit"; keytool writes PKCS12 unless told otherwise.
keytool -importcert -noprompt -alias authority -file authority.pem -keystore truststore.p12 -storepass changeit
keytool -importcert -noprompt -alias authority -file authority.pem -keystore truststore.jks -storetype JKS -storepass changeit
openssl pkcs12 -export -in client.pem -name client -passout pass:changeit -out client.p12
keytool -importkeystore -noprompt -srckeystore client.p12 -srcstorepass changeit -destkeystore client.jks \
    -deststoretype JKS -deststorepass changeit
openssl pkcs12 -export -legacy -in client.pem -name client -passout pass:changeit -out old.p12
